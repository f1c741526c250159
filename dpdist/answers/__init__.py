"""What a released second moment answers besides components: regression and covariance, each with its error. Free."""
