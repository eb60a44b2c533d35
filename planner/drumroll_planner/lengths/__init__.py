"""Length models: how long the answers to a prompt will be, with spread, learned while a job runs."""

from drumroll_planner.lengths.answers import Groups, Prompts, TokenIds
from drumroll_planner.lengths.models import LengthModels, LengthReport, with_siblings
from drumroll_planner.lengths.outlook import Outlook, Unit

__all__ = ["Groups", "LengthModels", "LengthReport", "Outlook", "Prompts", "TokenIds", "Unit", "with_siblings"]
