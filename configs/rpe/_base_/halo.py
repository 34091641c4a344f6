# keys of the 3x3 windows around instead of a shift; a checkpoint's table keeps the entries of its offsets
backbone = dict(rpe=dict(type='TableRPE', resize_mode='crop'), halo='window', shift_windows=False)
