"""Terms of a formula: what each kind learns from the data, its columns and its prior."""
