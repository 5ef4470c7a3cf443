"""Log-likelihoods of continuations, from endpoints that echo a prompt's tokens. A probe finds which way of
asking an endpoint supports; its tokens are then matched with the texts that were asked about. The connection
enters, by ``echo.Likelihood``.
"""
