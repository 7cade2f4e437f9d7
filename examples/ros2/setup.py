"""The package as ament builds it: ``colcon build --packages-select edgeserve_ros2``."""

from setuptools import setup

NAME = "edgeserve_ros2"

setup(
    name=NAME,
    version="0.1.0",
    packages=[NAME],
    zip_safe=True,
    license="Apache-2.0",
    description="Asks an EdgeServe server about camera images, and publishes its detections in time or not at all.",
    install_requires=["setuptools", "edgeserve-runtime"],
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{NAME}"]),
        (f"share/{NAME}", ["package.xml"]),
        (f"share/{NAME}/launch", ["launch/detect.launch.py"]),
        (f"share/{NAME}/config", ["config/detect.yaml"]),
    ],
    entry_points={"console_scripts": [f"detect = {NAME}.node:main"]},
)
