"""What a run says: training logs into records, figures, plots, comparisons, health and diagnosis."""
