"""Split, broadcast, partial: GShard's annotations, copies of weights, OneFlow's algebra."""
