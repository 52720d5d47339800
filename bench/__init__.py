"""What is claimed, measured. `python -m bench` runs everything, `python -m bench hub startup` a part of it.

Every table has a reference measured in the same run, because the machine is never quiet: compare ratios, not times.
"""
