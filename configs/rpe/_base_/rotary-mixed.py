# rotary embedding with frequencies that are learnt
backbone = dict(rpe=dict(type='RotaryRPE', mode='mixed'))
