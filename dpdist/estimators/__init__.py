"""The scikit-learn interface: estimators that release a private second moment when fitted."""

from dpdist.estimators.classifiers import PrivateLDA, PrivateLogisticRegression
from dpdist.estimators.covariance import PrivateCovariance
from dpdist.estimators.pca import PrivatePCA
from dpdist.estimators.ridge import PrivateRidge

__all__ = ["PrivateCovariance", "PrivateLDA", "PrivateLogisticRegression", "PrivatePCA", "PrivateRidge"]
