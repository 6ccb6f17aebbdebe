"""What comes before and after: weights and corpora in, Hugging Face folders out."""
