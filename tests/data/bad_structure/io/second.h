// Stands for a header whose source does not include it first.
