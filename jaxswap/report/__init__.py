"""Show it: a plan and its verification as text, pages, figures and traces."""

from jaxswap.report.report import Report as Report
from jaxswap.report.rows import BatchRow as BatchRow
from jaxswap.report.rows import FrontPoint as FrontPoint
