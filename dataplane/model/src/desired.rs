//! The desired state of the node.
