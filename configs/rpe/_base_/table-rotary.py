# two at once: Swin's table, and rotary embedding with learnt frequencies
backbone = dict(rpe=[dict(type='TableRPE'), dict(type='RotaryRPE', mode='mixed')])
