"""Multi-task graph attention network in plain JAX: node classification plus graph-level regression."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

NUM_CLASSES, NEGATIVE_SLOPE = 4, 0.2
TASK_WEIGHTS = {"node": 1.0, "graph": 0.5}


class GraphBatch(NamedTuple):
    """Padded batch of graphs; nodes, edges and graphs with a false mask are padding."""

    nodes: jax.Array
    edges: jax.Array
    senders: jax.Array
    receivers: jax.Array
    graph_ids: jax.Array
    node_mask: jax.Array
    edge_mask: jax.Array
    graph_mask: jax.Array


class Targets(NamedTuple):
    node_labels: jax.Array
    label_mask: jax.Array
    graph_values: jax.Array


def segment_softmax(logits, segment_ids, num_segments: int, mask):
    logits = jnp.where(mask[:, None], logits, -1e9)
    maxima = jax.lax.stop_gradient(jax.ops.segment_max(logits, segment_ids, num_segments))
    weights = jnp.where(mask[:, None], jnp.exp(logits - maxima[segment_ids]), 0.0)
    normalizer = jax.ops.segment_sum(weights, segment_ids, num_segments)
    return weights / jnp.maximum(normalizer[segment_ids], 1e-9)


def init_linear(key, n_in, n_out, use_bias=True):
    params = {"w": jax.nn.initializers.glorot_uniform()(key, (n_in, n_out))}
    return params | {"b": jnp.zeros(n_out)} if use_bias else params


def linear(params, x):
    out = x @ params["w"]
    return out + params["b"] if "b" in params else out


def init_params(key, node_dim, edge_dim, hidden=16, heads=2, num_layers=2):
    embed_key, node_key, graph_key, *layer_keys = jax.random.split(key, 3 + num_layers)
    layers = []
    for layer_key in layer_keys:
        k_query, k_key, k_edge, k_attn, k_out = jax.random.split(layer_key, 5)
        layers.append(
            {
                "source": init_linear(k_query, hidden, hidden),
                "target": init_linear(k_key, hidden, hidden, use_bias=False),
                "edge": init_linear(k_edge, edge_dim, hidden, use_bias=False),
                "attention": 0.1 * jax.random.normal(k_attn, (heads, hidden // heads)),
                "out": init_linear(k_out, hidden, hidden),
            }
        )
    outputs = {"node": init_linear(node_key, hidden, NUM_CLASSES), "graph": init_linear(graph_key, hidden, 1)}
    return {"embed": init_linear(embed_key, node_dim, hidden), "layers": layers, "outputs": outputs}


def attention_layer(params, h, graph: GraphBatch):
    """GATv2-style attention with edge features and a residual connection."""
    heads, head_dim = params["attention"].shape
    source = linear(params["source"], h)[graph.senders]
    target = linear(params["target"], h)[graph.receivers]
    messages = (source + linear(params["edge"], graph.edges)).reshape(-1, heads, head_dim)
    activated = jax.nn.leaky_relu(messages + target.reshape(-1, heads, head_dim), NEGATIVE_SLOPE)
    logits = jnp.einsum("ehd,hd->eh", activated, params["attention"])
    alpha = segment_softmax(logits, graph.receivers, h.shape[0], graph.edge_mask)
    aggregated = jax.ops.segment_sum(alpha[..., None] * messages, graph.receivers, h.shape[0])
    return h + jax.nn.elu(linear(params["out"], aggregated.reshape(h.shape)))


def forward(params, graph: GraphBatch):
    h = jax.nn.elu(linear(params["embed"], graph.nodes))
    for layer in params["layers"]:
        h = attention_layer(layer, h, graph)
    masked = jnp.where(graph.node_mask[:, None], h, 0.0)
    pooled = jax.ops.segment_sum(masked, graph.graph_ids, graph.graph_mask.shape[0])
    return linear(params["outputs"]["node"], h), linear(params["outputs"]["graph"], pooled)[:, 0]


def masked_mean(values, mask):
    return jnp.sum(jnp.where(mask, values, 0.0)) / jnp.maximum(jnp.sum(mask), 1)


def smoothed_cross_entropy(logits, labels, smoothing=0.1):
    soft_labels = (1.0 - smoothing) * jax.nn.one_hot(labels, NUM_CLASSES) + smoothing / NUM_CLASSES
    return -jnp.sum(soft_labels * jax.nn.log_softmax(logits), axis=-1)


def multitask_loss(params, graph: GraphBatch, targets: Targets, label_smoothing):
    logits, values = forward(params, graph)
    mask = targets.label_mask & graph.node_mask
    node_loss = masked_mean(smoothed_cross_entropy(logits, targets.node_labels, label_smoothing), mask)
    losses = {"node": node_loss, "graph": masked_mean((values - targets.graph_values) ** 2, graph.graph_mask)}
    accuracy = masked_mean(jnp.argmax(logits, axis=-1) == targets.node_labels, mask)
    return sum(TASK_WEIGHTS[task] * loss for task, loss in losses.items()), {"losses": losses, "accuracy": accuracy}


def train_step(params, velocity, graph, targets, *, learning_rate=1e-3, momentum=0.9, weight_decay=1e-4, smoothing=0.1):
    grads, metrics = jax.grad(multitask_loss, has_aux=True)(params, graph, targets, smoothing)
    # Decay matrices only: biases are vectors.
    grads = jax.tree.map(lambda g, p: g + weight_decay * p if p.ndim > 1 else g, grads, params)
    velocity = jax.tree.map(lambda v, g: momentum * v + g, velocity, grads)
    params = jax.tree.map(lambda p, v, g: p - learning_rate * (g + momentum * v), params, velocity, grads)
    return params, velocity, metrics


def random_batch(seed=0, sizes=(5, 7, 4), padded_nodes=20, node_dim=6, edge_dim=3):
    rng = np.random.default_rng(seed)
    num_graphs, num_nodes = len(sizes) + 1, sum(sizes)  # the last graph holds the padding
    graph_ids = np.repeat(np.arange(num_graphs), [*sizes, padded_nodes - num_nodes])
    receivers = np.repeat(np.arange(padded_nodes), 2)
    same_graph = [np.flatnonzero(graph_ids == graph_ids[r]) for r in receivers]
    graph = GraphBatch(
        nodes=rng.normal(size=(padded_nodes, node_dim)).astype(np.float32),
        edges=rng.normal(size=(2 * padded_nodes, edge_dim)).astype(np.float32),
        senders=np.array([rng.choice(nodes) for nodes in same_graph]),
        receivers=receivers,
        graph_ids=graph_ids,
        node_mask=np.arange(padded_nodes) < num_nodes,
        edge_mask=receivers < num_nodes,
        graph_mask=np.arange(num_graphs) < len(sizes),
    )
    labels, label_mask = rng.integers(0, NUM_CLASSES, padded_nodes), rng.random(padded_nodes) < 0.7
    targets = Targets(labels, label_mask, rng.normal(size=num_graphs).astype(np.float32))
    return jax.tree.map(jnp.asarray, (graph, targets))


def build():
    graph, targets = random_batch()
    params = init_params(jax.random.key(21), graph.nodes.shape[-1], graph.edges.shape[-1])
    velocity = jax.tree.map(jnp.zeros_like, params)
    return functools.partial(train_step, smoothing=0.05), (params, velocity, graph, targets)
