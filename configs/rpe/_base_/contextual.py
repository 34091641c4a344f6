# iRPE's contextual mode on keys: the query is multiplied with a vector per bucket
backbone = dict(rpe=dict(type='ContextualRPE', on='k'))
