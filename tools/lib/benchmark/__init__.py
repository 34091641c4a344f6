"""What tools/analysis_tools/benchmark.py is made of: contestants, yardsticks, time, memory, studies and the report."""
