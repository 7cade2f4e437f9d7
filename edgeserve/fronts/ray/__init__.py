"""EdgeServe on several devices or machines, as a deployment of Ray Serve (extra ``ray``).

Ray places, watches and restarts; it decides nothing about requests. ``replica`` embeds one runtime per device,
``dispatcher`` chooses among them and tries a refused or lost request once elsewhere, ``client`` asks, ``deployment``
puts them together and is the only module that imports Ray. ``calls`` is what travels between them.
"""
