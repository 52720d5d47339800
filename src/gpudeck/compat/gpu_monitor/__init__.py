"""gpu-monitor: scripts that write CSV files, a page in PHP that reads them, bookings in comments.json."""
