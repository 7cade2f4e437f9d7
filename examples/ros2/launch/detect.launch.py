"""``ros2 launch edgeserve_ros2 detect.launch.py image:=/camera/image_raw``"""

import os

from ament_index_python.packages import get_package_share_directory
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node


def generate_launch_description():
    """The node with its parameters, and the camera's topic as an argument."""
    parameters = os.path.join(get_package_share_directory("edgeserve_ros2"), "config", "detect.yaml")
    return LaunchDescription(
        [
            DeclareLaunchArgument("image", default_value="/camera/image_raw"),
            DeclareLaunchArgument("detections", default_value="/detections"),
            Node(
                package="edgeserve_ros2",
                executable="detect",
                name="edgeserve_detect",
                output="screen",
                parameters=[parameters],
                remappings=[("image", LaunchConfiguration("image")), ("detections", LaunchConfiguration("detections"))],
            ),
        ]
    )
