from .heatmap import Heatmap as Heatmap
from .run import Run as Run
from .run import open_run as open_run
from .schema import Layout as Layout
from .store.disk_writer import Flushing as Flushing
from .store.memory_writer import memory_run as memory_run
from .store.open import join_run as join_run
from .store.open import start_run as start_run
