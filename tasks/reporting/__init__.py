"""What people see of a run: terminal, exports, report."""
