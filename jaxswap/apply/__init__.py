"""Apply: carry out what was decided about each value of a training step."""

from jaxswap.apply.check import CheckError as CheckError
from jaxswap.apply.check import SelfCheck as SelfCheck
from jaxswap.apply.check import check_applied as check_applied
from jaxswap.apply.check import self_check as self_check
from jaxswap.apply.decision import Action as Action
from jaxswap.apply.decision import Decision as Decision
from jaxswap.apply.decision import NamedValue as NamedValue
from jaxswap.apply.step import AppliedStep as AppliedStep
from jaxswap.apply.step import apply_decisions as apply_decisions
from jaxswap.apply.step import name_values as name_values
from jaxswap.apply.step import rewrite_step as rewrite_step
