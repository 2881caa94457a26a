"""What the step costs: devices, kernels, transfers, and the simulator the search runs."""
