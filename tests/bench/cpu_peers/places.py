"""Where peers and their models lie."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Places:
    """The directory that `make bench-peers` fills."""

    root: Path

    @staticmethod
    def default_root() -> Path:
        """Returns the directory within this checkout."""
        return Path(__file__).parents[3] / "build" / "peers"

    @property
    def models(self) -> Path:
        """GGUF files, and directories in the format of Hugging Face."""
        return self.root / "models"

    @property
    def llama_cpp(self) -> Path:
        """Source and build."""
        return self.root / "llama_cpp"

    @property
    def llama_server(self) -> Path:
        """The program."""
        return self.llama_cpp / "build" / "bin" / "llama-server"

    @property
    def openvino(self) -> Path:
        """Environment and models."""
        return self.root / "openvino"

    @property
    def vllm(self) -> Path:
        """Environment."""
        return self.root / "vllm"

    @property
    def bfloat16(self) -> Path:
        """The model as vLLM reads it."""
        return self.models / "bfloat16"

    @property
    def logs(self) -> Path:
        """What engines say."""
        return self.root / "logs"

    def gguf(self, kind: str) -> Path:
        """Returns the model in a type of GGUF files."""
        return self.models / f"{kind}.gguf"

    def openvino_model(self, kind: str) -> Path:
        """Returns the directory of a model for OpenVINO, f16 or int8."""
        return self.openvino / "models" / kind
