#include <exception>

#include "bindings.h"

namespace py = pybind11;

namespace antiphon::bindings {

namespace {

// The exception types live as long as the interpreter.
struct ErrorTypes {
  py::object never_fits;
  py::object queue_full;
  py::object invariant;
  py::object stalled;
};

ErrorTypes& Types() {
  static py::gil_safe_call_once_and_store<ErrorTypes> storage;
  return storage.call_once_and_store_result([] { return ErrorTypes{}; }).get_stored();
}

py::object MakeType(py::module_& module, const char* name, PyObject* base, const char* doc) {
  const std::string full_name = py::cast<std::string>(module.attr("__name__")) + "." + name;
  PyObject* type = PyErr_NewExceptionWithDoc(full_name.c_str(), doc, base, nullptr);
  if (type == nullptr) {
    throw py::error_already_set();
  }
  auto owned = py::reinterpret_steal<py::object>(type);
  module.attr(name) = owned;
  return owned;
}

void Translate(std::exception_ptr thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const NeverFitsError& error) {
    const py::tuple args = py::make_tuple(error.needed(), error.available());
    PyErr_SetObject(Types().never_fits.ptr(), args.ptr());
  } catch (const QueueFullError& error) {
    PyErr_SetString(Types().queue_full.ptr(), error.what());
  } catch (const StalledError& error) {
    PyErr_SetString(Types().stalled.ptr(), error.what());
  } catch (const InvariantError& error) {
    PyErr_SetString(Types().invariant.ptr(), error.what());
  }
}

}  // namespace

void BindErrors(py::module_& module) {
  Types().never_fits = MakeType(
      module, "NeverFitsError", PyExc_ValueError,
      "The request alone needs more KV blocks than the pool has; args are (needed, available).");
  Types().queue_full = MakeType(module, "QueueFullError", PyExc_RuntimeError,
                                "As many requests as the core can hold are there already.");
  Types().invariant = MakeType(module, "InvariantError", PyExc_RuntimeError,
                               "The core contradicts itself: a bug. The engine process must end.");
  Types().stalled = MakeType(module, "StalledError", PyExc_RuntimeError,
                             "Requests wait, nothing runs, and nothing will change that.");
  py::register_local_exception_translator(Translate);
}

}  // namespace antiphon::bindings
