"""Apply: carry out what was decided about each value of a training step."""

from jaxswap.apply.decision import Action as Action
from jaxswap.apply.decision import Decision as Decision
from jaxswap.apply.decision import NamedValue as NamedValue
from jaxswap.apply.step import AppliedStep as AppliedStep
from jaxswap.apply.step import apply_decisions as apply_decisions
from jaxswap.apply.step import name_values as name_values
from jaxswap.apply.step import rewrite_step as rewrite_step
