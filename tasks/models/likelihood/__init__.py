"""Log-likelihoods of continuations, from endpoints that echo a prompt's tokens. Which way of asking an
endpoint supports is found by a probe; tokens are then matched with the texts that were asked about.
Entered by the inference engine alone.
"""
