"""The only room that knows MMDetection and MMSegmentation: what joins the backbone to their models and configs."""
