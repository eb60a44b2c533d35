"""The planner `asp`: orders a pass by predicted length where that pays, and says why."""

from drumroll_planner.asp.choose import Choice, Trial, choose
from drumroll_planner.asp.explanation import Explanation
from drumroll_planner.asp.fleet import Choosing, FleetModel
from drumroll_planner.asp.orders import Shape, shuffled, tail_batched
from drumroll_planner.asp.planner import AspPlan, AspPlanner
from drumroll_planner.asp.pressure import Pressure, pressure

__all__ = [
    "AspPlan",
    "AspPlanner",
    "Choice",
    "Choosing",
    "Explanation",
    "FleetModel",
    "Pressure",
    "Shape",
    "Trial",
    "choose",
    "pressure",
    "shuffled",
    "tail_batched",
]
