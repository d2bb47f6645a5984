"""Changes to graphs before they are lowered: equal nodes, max pools, embeddings, log-softmax."""
