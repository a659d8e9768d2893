"""From a study's tree to algorithm, shapes and price: one assembler for `fit`, `run`, the daemon and the server."""
