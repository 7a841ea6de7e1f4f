"""What a checkpoint is worth on a data set, by the frames, prompts and rewards of training."""
