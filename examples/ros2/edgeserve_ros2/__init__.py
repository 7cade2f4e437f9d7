"""A ROS 2 node in front of an EdgeServe server."""
