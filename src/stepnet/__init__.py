"""A compiler for recurrent networks: one step as equations in, machine code for whole sequences out."""

from stepnet import cells as cells
from stepnet import layout as layout
from stepnet.compose import Bidirectional as Bidirectional
from stepnet.compose import Stack as Stack
from stepnet.errors import StepnetError as StepnetError
from stepnet.functions import elu as elu
from stepnet.functions import erf as erf
from stepnet.functions import gelu as gelu
from stepnet.functions import hard_sigmoid as hard_sigmoid
from stepnet.functions import layer_norm as layer_norm
from stepnet.functions import leaky_relu as leaky_relu
from stepnet.functions import one_hot as one_hot
from stepnet.functions import relu as relu
from stepnet.functions import selu as selu
from stepnet.functions import sigmoid as sigmoid
from stepnet.functions import silu as silu
from stepnet.functions import softmax as softmax
from stepnet.functions import softplus as softplus
from stepnet.functions import softsign as softsign
from stepnet.ragged import Ragged as Ragged
from stepnet.recurrence import RNN as RNN
from stepnet.recurrence import scan as scan
from stepnet.step import Spec as Spec
from stepnet.threads import set_threads as set_threads
from stepnet.version import __version__ as __version__
