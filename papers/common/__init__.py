"""What the workflows that repeat published experiments share."""

import cloudpickle

import papers

cloudpickle.register_pickle_by_value(papers)  # workers need not have these scripts: their functions travel by value
