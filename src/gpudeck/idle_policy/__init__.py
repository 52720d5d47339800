"""The idle policy: owners of idle GPUs are notified, warned, and at last a hook acts."""
