"""The table of ATen operations that a step or a module may use."""

from stepnet.importers.aten.table import ATEN as ATEN
