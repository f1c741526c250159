"""What a released second moment answers: components, regression, covariance, forecasts, each with its error. Free."""
