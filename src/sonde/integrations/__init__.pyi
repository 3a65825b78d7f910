from .accelerate import AccelerateTracker as AccelerateTracker
from .lightning import LightningCallback as LightningCallback
from .loggers import MLflowSink as MLflowSink
from .loggers import OpenTelemetrySink as OpenTelemetrySink
from .loggers import TensorBoard as TensorBoard
from .loggers import WandbSink as WandbSink
from .transformers import TransformersCallback as TransformersCallback
