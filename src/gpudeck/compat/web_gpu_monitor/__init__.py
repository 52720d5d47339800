"""web-gpu-monitor: nvidia-smi over SSH into a CSV file and a static page. Its config.ini is imported."""
