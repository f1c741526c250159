"""What the workflows that repeat published experiments share."""

import cloudpickle

import workflows

cloudpickle.register_pickle_by_value(workflows)  # workers need not have these scripts: their functions travel by value
