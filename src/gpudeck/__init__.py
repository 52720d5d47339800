"""gpudeck shows every GPU of a fleet of servers: which are free, who uses what and how well.

Start reading at docs/way-of-a-report.md: the packages below stand in the order in which a report visits them.
"""

__version__ = "0.1.0"
