# rotary embedding with fixed frequencies; no parameters
backbone = dict(rpe=dict(type='RotaryRPE', mode='axial'))
