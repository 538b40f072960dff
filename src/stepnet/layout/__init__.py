"""Weights of other frameworks: where their numbers lie, what they mean, and their conversion."""

from stepnet.layout.convert import Conversion as Conversion
from stepnet.layout.convert import convert as convert
from stepnet.layout.find import find as find
from stepnet.layout.layers import layers as layers
from stepnet.layout.record import Record as Record
from stepnet.layout.registry import record as record
from stepnet.layout.registry import records as records
from stepnet.layout.semantics import Semantics as Semantics
from stepnet.layout.sizes import Sizes as Sizes
from stepnet.layout.state import from_torch as from_torch
from stepnet.layout.verify import Weights as Weights
from stepnet.layout.verify import verify as verify
