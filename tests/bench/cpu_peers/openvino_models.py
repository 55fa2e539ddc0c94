"""Makes OpenVINO's models of a GGUF file. Runs in OpenVINO's own environment.

`python openvino_models.py F16.gguf DIRECTORY` fills DIRECTORY/f16, as it is, and DIRECTORY/int8,
with int8 weights, one scale for each output channel.
"""

import os
import shutil
import sys
from pathlib import Path

import nncf
import openvino
import openvino_genai


def main() -> None:
    """Converts."""
    source, target = map(Path, sys.argv[1:])
    plain, narrow = target / "f16", target / "int8"
    plain.mkdir(parents=True, exist_ok=True)
    narrow.mkdir(exist_ok=True)
    # The library leaves its model beside the file that it has read.
    link = plain / "model.gguf"
    link.unlink(missing_ok=True)
    os.link(source, link)
    print("converting to f16 ...", flush=True)
    openvino_genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
    link.unlink()
    print("quantizing to int8 ...", flush=True)
    model = openvino.Core().read_model(plain / "openvino_model.xml")
    model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
    openvino.save_model(model, narrow / "openvino_model.xml")
    for file in plain.glob("openvino_*tokenizer.*"):
        shutil.copy(file, narrow)


if __name__ == "__main__":
    main()
