"""A constraint that a caller wants to try."""

from antiphon.v1.inference_pb2 import ValidateConstraintRequest, ValidateConstraintResponse
from antiphon.v1.types_pb2 import FieldViolation as FieldViolationMessage

from antiphon_engine.api.errors import AntiphonError, ErrorReason, FieldViolation, InvalidRequest
from antiphon_server.capabilities import unsupported_feature
from antiphon_server.constraints.reading import check_constraint, read_constraint
from antiphon_server.served_model import ServedModel
from antiphon_server.times import to_duration
from antiphon_server.validation_fields import Violations

_OF_THE_CONSTRAINT = frozenset(
    {
        ErrorReason.INVALID_FIELD,
        ErrorReason.UNSUPPORTED_CONSTRAINT,
        ErrorReason.CONSTRAINT_TOO_COMPLEX,
    }
)
_FIELD = "constraint"


async def try_constraint(
    request: ValidateConstraintRequest, model: ServedModel
) -> ValidateConstraintResponse:
    """Returns whether requests may use a constraint, and if not, why.

    Raises:
        AntiphonError: nobody can say: there is none, its kind isn't offered, or it can't be checked
            now.
    """
    kind = request.constraint.WhichOneof("kind")
    if kind is None:
        raise InvalidRequest(FieldViolation(_FIELD, "one of its kinds must be set"))
    if kind not in model.capabilities.constraints | {"none"}:
        raise unsupported_feature("constraints", f"{_FIELD}.{kind}")
    try:
        return await _try(request, model)
    except AntiphonError as error:
        if error.reason not in _OF_THE_CONSTRAINT:
            raise
        at_fault = error.violations or [
            FieldViolation(error.metadata.get("field", _FIELD), error.message)
        ]
        return ValidateConstraintResponse(
            violations=[
                FieldViolationMessage(field=each.field, description=each.description)
                for each in at_fault
            ]
        )


async def _try(
    request: ValidateConstraintRequest, model: ServedModel
) -> ValidateConstraintResponse:
    limits, violations = model.limits.constraints, Violations()
    check_constraint(request.constraint, limits=limits, path=_FIELD, violations=violations)
    violations.raise_if_any()
    asked = read_constraint(request.constraint, limits=limits)
    compile_ns = 0
    if asked is not None:
        # As it was when it was compiled, for whomever: whether others asked for it is not told.
        compile_ns = (await model.checker.check(asked, path=_FIELD)).compile_ns
    return ValidateConstraintResponse(valid=True, compile_time=to_duration(compile_ns))
