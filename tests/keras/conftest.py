"""Tests of what an older Keras does not do are skipped with it: `make test-lowest` runs the lowest one."""

import keras
import pytest

from stepnet.compiler.values.packages import Package

LATER = {
    "Keras 3.14 is the first whose layers can be traced inside a cell": """
        test_convolutions_run_keras_own_loop test_a_cell_of_ones_own
        test_what_cannot_be_traced_runs_keras_own_loop_and_says_why
        test_a_cell_that_draws_is_compiled_where_it_does_not test_stacked_cells_are_one_step
        test_low_precision_of_a_cell_with_layers_in_it
        test_a_layer_that_is_built_when_it_is_called_is_trained
        test_a_cell_that_draws_with_numpy_runs_keras_own_loop test_globals_and_class_attributes_are_settings
    """,
    "before Keras 3.14 outputs have other masks, and other batches of a stateful layer other errors": """
        test_states_of_both_directions_under_a_mask test_another_batch_of_a_stateful_layer_is_refused
        test_stateful_invalid_use
    """,
    "the wheel of this Keras has no tests of its own": "test_keras_own_tests_pass_with_it_on",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what is in the table."""
    if not Package("keras", "3.14").older(keras.__version__):
        return
    reasons = {name: reason for reason, names in LATER.items() for name in names.split()}
    for item in items:
        name = item.nodeid.rpartition("::")[2].partition("[")[0]
        if item.nodeid.startswith("tests/keras/") and name in reasons:
            item.add_marker(pytest.mark.skip(reason=reasons[name]))
