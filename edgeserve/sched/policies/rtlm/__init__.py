"""RT-LM: language models served by how long their answers will be. As published and corrected, and at its best."""
