# no encoding at all: attention does not know where its keys lie
backbone = dict(rpe=None)
