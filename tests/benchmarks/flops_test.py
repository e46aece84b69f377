"""Operations counted on paper, against those of the graph."""

from absl.testing import absltest
import tensorflow as tf

from benchmarks import flops
from tff_asr.models import ctc
from tff_asr.models import transformer
from tff_asr.text import tokenizer as tokenizer_lib

_SIZES = dict(
    batch_size=2,
    num_frames=31,
    feature_dim=80,
    num_blocks=3,
    dim=16,
    mlp_dim=32,
)


class FlopsTest(absltest.TestCase):

  def test_forward_is_what_the_graph_multiplies(self):
    tokenizer = tokenizer_lib.CharTokenizer()
    model = ctc.build(
        encoder=transformer.build(
            num_blocks=_SIZES['num_blocks'],
            dim=_SIZES['dim'],
            mlp_dim=_SIZES['mlp_dim'],
            num_heads=4,
        ),
        tokenizer=tokenizer,
    )
    weights = model.initialize(tf.constant([1, 2]))
    batch_size, num_frames = _SIZES['batch_size'], _SIZES['num_frames']
    shape = [batch_size, num_frames, _SIZES['feature_dim']]
    graph = (
        tf.function(model.logits, autograph=False)
        .get_concrete_function(
            weights, tf.zeros(shape), tf.fill([batch_size], num_frames)
        )
        .graph
    )
    counted = 0
    for node in graph.get_operations():
      if node.type in ('MatMul', 'BatchMatMulV2'):
        # [..., m, k] by [..., k, n].
        left = node.inputs[0].shape.as_list()
        inner = left[-2 if _is_transposed(node) else -1]
        counted += 2 * inner * _size(node.outputs[0])
      elif node.type == 'Conv2D':
        kernel = node.inputs[1].shape.as_list()
        counted += 2 * kernel[0] * kernel[1] * kernel[2] * _size(
            node.outputs[0]
        )
    sizes = dict(_SIZES, vocab_size=tokenizer.vocab_size)
    self.assertEqual(counted, flops.forward(**sizes))
    # Two products backward for each forward.
    self.assertEqual(flops.step(**sizes), 3 * counted)


def _is_transposed(node: tf.Operation) -> bool:
  name = 'transpose_a' if node.type == 'MatMul' else 'adj_x'
  return node.get_attr(name)


def _size(tensor: tf.Tensor) -> int:
  return tensor.shape.num_elements()
